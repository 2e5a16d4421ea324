"""Plots 1 to 32: children at home, at school and about the town, in the notation of `stories.py`."""

PLOTS = """
# the lost toy
One {weather} {time}, {hero} could not find {his} {color} {toy}. {He} felt {gloom}. {He} looked {hide}, but
the {toy} was not there. {He} looked {spot}, but it was not there. "Do not worry," said {friend} {kindly}. "I
will help you look." Together they {walked} to the {place}. There, next to {a box}, lay the {color} {toy}!
"{cheer}!" cried {hero}. {He} picked up the {toy} and then {he} hugged {friend}. At home, the two friends ate
some {treats} and played with the {toy}. {hero} felt {feeling}. {closing}

# the first day at school
{once}, there lived {a trait} {boy} named {hero} who was new at school. On the first day, {hero} felt {gloom}
because {he} did not know anyone. At lunch, {he} sat alone with some {treats}. Then a {boy friend} in
{a color} {wear} came over. "My name is {friend}," said the {boy friend} {kindly}. "Do you like {hobby}?"
"Yes, I love {hobby}," said {hero}. "Me too," said {friend}. They shared the {treats}, and after lunch they
played {game} until the bell rang. The next day, {hero} brought {a look} {toy} to show to {friend}, and
{friend} {smiled}. School was not scary anymore. {closing}

# the broken vase
One {fine} {time}, {hero} ran through the house with {a toy} and bumped into something. {crash}! It was
{elder}'s {look} {color} vase, and now it was in {number} pieces. {hero} felt {gloom}. {He} wanted to hide the
pieces {hide}. But {he} took a deep breath and told the truth. "I broke your vase, and I am sorry," said
{hero}. {elder} was quiet, and then {he elder} gave {hero} a hug. "Thank you for telling me," said {elder}
{kindly}. "We can fix it together." They glued the {number} pieces and filled the vase with {flowers}. Then
they ate some {treats}, and {hero} felt {feeling}. {closing}

# the wind and the hat
On a windy {time}, {hero} wore {his} new {color} {wear} to the {place}. Whoosh! The wind took the {wear} and
hung it high up in {a tree} tree. {hero} felt {gloom} because {he} could not reach it. {A bird} sat on a
branch. "Can you help me?" asked {hero}. "I will help if you bring me some {fruits}," said the {bird}
{kindly}. So {hero} {walked} home and came back with {number} {fruits} in {a box}. The {bird} ate them all,
and then it pushed the {color} {wear} off the branch. "{cheer}!" cried {hero}. {He} put on the {wear} and
danced all the way home. {hero} felt {feeling}. {closing}

# the seeds
One {fine} {time}, {elder} gave {hero} {number} tiny seeds. "What will they be?" asked {hero}. "Wait and see,"
said {elder} {kindly}. {hero} planted the seeds near the {place}, beside {a tree} tree, and watered them every
day with {a color} watering can. For a long time nothing happened, and {hero} felt {gloom}. Then, at last,
{number} green leaves came out of the ground. Soon they were {flowers}! "{cheer}!" cried {hero}. {He} put the
{flowers} in {a box} and brought them to {friend}, who had a bad cold. "They smell so sweet," said {friend},
and {smiled}. {hero} felt {feeling}. {closing}

# the bicycle
One {fine} {time}, {hero} wanted to learn to ride {his} {color} bicycle. {elder} took {him} to the path near
the {place}. {hero} put on {a look} helmet and began to pedal. {crash}! {He} fell down next to some {flowers}.
{hero} felt {gloom}. "Try once more," said {elder} {kindly}. "I will hold on." {hero} tried {number} more
times. Then {elder} let go, and {hero} did not fall! {He} rolled right past {friend}, who was eating some
{treats}. "{cheer}!" shouted {friend}. "You can ride!" {hero} rang the bell, and {elder} {smiled}. {hero} felt
{feeling}. {closing}

# the noise at bedtime
At bedtime, {hero} lay in {his} {color} bed and heard a strange noise. {sound}! "There is {a creature}
{hide}," whispered {hero}. {He} held {his} {toy} tight. {elder} came with {a look} lamp. "Let us look
together," said {elder} {kindly}. They looked {hide}. It was not {a creature} at all! It was only {a critter}
eating some {treats}. "{cheer}!" laughed {hero}. {He} named the {critter} {pet} and made it a soft bed out of
an old {wear}. "Good night, {pet}," said {hero}. In the morning, {hero} felt {feeling}. {closing}

# the birthday cake
It was {elder}'s birthday, and {hero} wanted to bake {a flavor} cake. {friend} came to help. They mixed eggs,
flour, and {fruits} in {a color} bowl. But {hero} let go of the bowl. {crash}! Now there was cake {hide}.
{hero} felt {gloom}. "We can clean up and try again," said {friend} {kindly}. So they washed the floor and
baked a new {flavor} cake. They put {number} candles on top and some {flowers} beside it. Then {elder} came
home from the {place}. "{cheer}!" cried {elder}. "I love {flavor} cake." They ate it all and played {game}.
{hero} felt {feeling}. {closing}

# the fort
It rained and rained, so {hero} and {friend} could not go to the {place}. They felt {gloom}. Then {hero} had
an idea. "Let us build a castle," said {hero} {kindly}. They hung {a color} blanket over {number} chairs.
Inside, they put {a look} lamp, some {treats}, and {a toy}. "Now we need {a creature} to guard it," said
{friend}. Just then {a critter} named {pet} crept in. "Here is our {creature}," laughed {hero}. They gave
{pet} some {treats} and told stories about {topic} until the rain stopped. {hero} and {friend} felt {feeling}.
{closing}

# the shy musician
One {fine} {time}, {hero} was going to play the {instrument} in a show near the {place}. {He} wore {a color}
{wear}. But when {he} saw {number} people waiting, {he} felt {gloom}. "I cannot do it," {he} whispered.
{friend} held {his} hand. "Just look at me and think of {topic}," said {friend} {kindly}. So {hero} looked at
{friend}, thought of {topic}, and played the {instrument}. It was a song about {a animal} who could not sleep.
When it was over, everyone clapped. "{cheer}!" they shouted. {elder} hugged {hero}, and {hero} felt {feeling}.
{closing}

# the fruit stand
{hero} wanted to buy {a color} {toy}, but {he} had no money. {He} felt {gloom}. "You could sell {fruits} from
our garden," said {elder} {kindly}. So {hero} put a table near the {place} and filled {a box} with {fruits}.
First came {neighbor}. "I would like {number} {fruits}, please," said {neighbor}. Then came {a job}, and then
came {friend}. Soon all the {fruits} were sold. "{cheer}!" cried {hero}. {He} {walked} to the store and bought
the {color} {toy}. {hero} let {friend} play with the {toy} too, and they both felt {feeling}. {closing}

# the loose tooth
{hero} had a loose tooth that would not come out. {He} ate some {treats}, but the tooth stayed in. {He} played
{game}, but the tooth stayed in. {He} felt {gloom}. "Just wait a little," said {elder} {kindly}. The next day,
near the {place}, {friend} told a joke about {a animal} in {a color} {wear}. {hero} laughed so hard that the
tooth popped out! "{cheer}!" cried {hero}. {He} put the tooth into a tiny box and slept with it under {his}
pillow. In the morning, {he} found {number} coins and {a treasure}. {hero} showed the {treasure} to {friend},
and {friend} {smiled}. {closing}

# the library book
One {weather} {time}, {hero} went to the library to find a book about {topic}. But the book was gone. {hero}
felt {gloom}. "Try this one," said the librarian {kindly}. "It is about {a animal} who loves {hobby}." {hero}
sat down in {a color} chair and read. The {animal} was called {pet}, and {he pet} lived near {a place}. Then a
{boy friend} sat down beside {hero}. "I have the book about {topic}," said the {boy friend}. "My name is
{friend}. Shall we trade?" "{cheer}!" said {hero}. They read {number} pages, and then they talked about
{topic} until the library closed. {hero} felt {feeling}. {closing}

# the snowman
Snow had fallen all around the {place}. {hero} and {friend} went out to build a snowman. They gave him
{number} buttons, {a color} {wear}, and {a toy} to hold. "He looks lonely," said {hero}. "Then let us make him
a friend," said {friend} {kindly}. So they built {a animal} out of snow and named it {pet}. But then the head
fell off. {crash}! They felt {gloom}, but then they fixed it with more snow. {A bird} came and sat on top.
"{cheer}!" laughed {hero}. They went inside and ate some {treats}. From the window, they waved to {pet} and
the snowman. {hero} felt {feeling}. {closing}

# the sandcastle
At the beach, one {fine} {time}, {hero} built a sandcastle with {number} towers. {He} put {a color} flag on
top and {a treasure} by the door. Then a big wave came. Splash! The sandcastle was gone, and {hero} felt
{gloom}. A {boy friend} came over with {a look} bucket. "I am {friend}," said the {boy friend} {kindly}. "Let
us build a new one far from the water." They dug and dug. They made {number} towers again, and a sand
{creature} to guard them. {elder} brought some {treats}. "{cheer}!" cried {elder}. Another wave came, but this
time the sandcastle stood. {hero} felt {feeling}. {closing}

# moving away
{hero} felt {gloom} because {his} best friend {friend} was moving to a house near {a place}. "Who will play
{game} with me?" asked {hero}. "Give {friend} something to remember you by," said {elder} {kindly}. So {hero}
took {a box} and put in {a treasure}, {number} {color} stickers, and a picture of {a animal}. {friend} loved
it. "I will write to you," said {friend}, and waved goodbye. Many weeks later, a letter came. "{cheer}!" cried
{hero}. "{friend} is coming to visit!" {hero} got some {treats} ready and waited by the gate. Soon they were
playing {game} again, and {hero} felt {feeling}. {closing}

# at the doctor
{hero} did not feel well. {He} had {number} red spots on {his} tummy. "We must see the doctor," said {elder}.
{hero} felt {gloom} and held {his} {color} {toy} tight. In the waiting room sat a {boy friend} named {friend}.
"Do not be afraid," said {friend} {kindly}. "The doctor has {a box} full of {treats}." The doctor looked at
the {number} spots and told a joke about {a animal}. Then {hero} got some {treats} from the {box}. "{cheer}!"
said {hero}. At home, {elder} read {him} a story about {topic}. In the morning the spots were gone, and {hero}
felt {feeling}. {closing}

# too much salt
{elder} was cooking a big pot of soup, and {hero} wanted to help. {hero} stirred the soup with {a color}
spoon. Then {he} reached for the salt. {crash}! All of the salt fell in. {hero} felt {gloom}. "We can save
it," said {elder} {kindly}. They added {number} cups of water. Then {friend} came in with {a look} {box} full
of {veggies}. They cut up the {veggies} and put them in the soup. Now there was so much soup that they called
{neighbor} to come and eat. "{cheer}!" said {neighbor}. "This is the best soup in town." After supper, they
all played {game}, and {hero} felt {feeling}. {closing}

# the painting contest
There was going to be a painting contest near the {place}, and {hero} painted {a animal} in {a color} {wear}.
Then {a critter} named {pet} ran right across the wet paint. Now there were {number} tracks on the picture.
{hero} felt {gloom}. "Turn the tracks into {flowers}," said {friend} {kindly}. So {hero} painted petals around
every track, and soon the {animal} was dancing in a field of {flowers}. At the contest, {neighbor} looked at
the picture for a long time. "{cheer}!" said {neighbor}. "This one wins!" The prize was {a toy}. {hero} shared
the {toy} with {friend}, and {pet} got a big hug. {closing}

# lost at the market
In the busy market, {hero} let go of {elder}'s hand to look at {a color} {toy}. When {he} turned around,
{elder} was gone. {hero} felt {gloom}. {He} stood still between the {fruits} and the {flowers}. "Are you
lost?" asked {a job} {kindly}. "Yes," said {hero}. "{elder} is wearing {a wear}." The {job} lifted {hero} up
high. {hero} looked over {number} tables, and there was the {wear}! "{cheer}!" shouted {hero}. {elder} ran
over and hugged {him}. They thanked the {job} with some {treats}. Then {hero} held {elder}'s hand all the way
past the {place} and home. {hero} felt {feeling}. {closing}

# the new baby
{hero} had a new baby {brother friend} named {friend}. All day long, {friend} cried and cried. {elder} sang
about {topic}, but {friend} cried. {neighbor} brought {a color} {toy}, but {friend} cried. {hero} felt
{gloom}. Then {hero} put on {a wear}, made a face like {a animal}, and said, "{sound}!" {friend} stopped
crying. {hero} did it {number} more times, and {friend} laughed. "{cheer}!" cried {elder}. "How did you do
that?" "I am a big {brother} now," said {hero} {kindly}. Then {friend} fell asleep, and everyone had some
{treats}. {hero} felt {feeling}. {closing}

# the open gate
One {fine} {time}, {hero} visited {neighbor}'s farm near the {place}. {neighbor} had {a critter} named {pet}
who liked to run away. {hero} forgot to close the gate, and soon {pet} was gone. {hero} felt {gloom}. {He}
looked {spot}, but {pet} was not there. "Do not worry," said {neighbor} {kindly}. "{pet} loves {fruits}." So
{hero} filled {a color} {box} with {fruits} and put it by the gate. {He} counted to {number}. Then {pet} came
out and began to eat the {fruits}. "{cheer}!" cried {hero}, and closed the gate. {He} hugged {pet} and felt
{feeling}. {closing}

# the treasure map
{hero} found an old map {hide}. "It shows a treasure," said {hero}. {friend} came with a shovel. They walked
{number} steps from the {place} and began to dig under {a tree} tree. At first, they found only {a treasure},
and they felt {gloom}. "Let us dig a little deeper," said {friend} {kindly}. Then the shovel hit {a color}
{box}! Inside the {box} lay {a toy} and a letter. "A good friend is the best treasure," said the letter.
{elder} jumped out from behind the {tree} tree with some {treats}. "{cheer}!" cried {hero}. "It was you!"
{hero} and {friend} felt {feeling}. {closing}

# the letter in the bottle
While walking by the sea, {hero} found {a color} bottle. There was a letter inside. "My name is {friend},"
said the letter. "I live on an island with {a animal}. I love {hobby}, but I have no one to play {game} with."
{hero} felt {gloom}. "Let us write back," said {elder} {kindly}. So {hero} wrote about {hobby} and about the
{place}. {He} put the letter and {a treasure} into the bottle and threw it into the sea. After {number} weeks,
{a look} boat came. In it sat a {boy friend} with {a animal}. "{cheer}!" cried {hero}. "You must be {friend}!"
They shared some {treats} and played {game} all day long. {closing}

# the toy that was not shared
{friend} had a new {color} {toy}, and {hero} wanted one too. {hero} only had {a treasure}, and {he} felt
{gloom}. At the {place}, {hero} asked, "May I play with the {toy}?" "No, it is mine," said {friend}. {hero}
sat down under {a tree} tree. "Maybe you could share something first," said {elder} {kindly}. {hero} had some
{treats}, and {he} gave half of them to {friend}. {friend} ate the {treats} and looked at the {toy}. "I am
sorry," said {friend}. "You can play with it too." "{cheer}!" cried {hero}. They made believe that the {toy}
belonged to {a creature}. {hero} and {friend} felt {feeling}. {closing}

# learning to swim
{hero} was afraid of deep water. At the pool, {he} sat on {a color} towel and watched {friend} swim like
{a sea}. {hero} felt {gloom}. "Hold my hands and kick," said {friend} {kindly}. {hero} put on {a look} cap and
counted to {number}. Then {he} stepped in and kicked so hard that {neighbor}'s {wear} got wet. "Sorry," said
{hero}, but {neighbor} only {smiled}. {hero} kicked again. Soon {he} could float, and then {he} could swim!
"{cheer}!" shouted {friend}. {elder} gave {hero} a medal with {a animal} on it. They ate some {treats} by the
pool, and {hero} felt {feeling}. {closing}

# the tangled wool
Winter was coming, and {hero} wanted to knit {a wear} for {elder}. {He} bought {number} balls of {color} wool
near the {place}. But {a critter} named {pet} played with the wool and tangled it all up. {hero} felt {gloom}.
"I will hold the wool for you," said {friend} {kindly}. So {friend} held the wool, and {hero} knitted. They
ate some {treats} and talked about {topic}. At last, the {color} {wear} was done. "{cheer}!" said {elder}. "It
is as warm as a hug." There was even enough wool for a tiny {wear} for {pet}. {hero} felt {feeling}. {closing}

# the big race
{hero} and {friend} were in the big race to the {place}. The prize was {a toy}. {neighbor} counted to {number}
and waved {a color} flag. {hero} ran very fast. Then {he} saw {a critter} that was stuck in {a box}. {hero}
stopped and helped the {critter} out. But now {friend} had won the race, and {hero} felt {gloom}. "You stopped
to help," said {friend} {kindly}. "The {toy} is for you." "Let us share it," said {hero}. "{cheer}!" shouted
{neighbor}, and gave them some {treats}. They named the {critter} {pet}, and it sat between them. They felt
{feeling}. {closing}

# the leaves
Old {neighbor} lived near the {place}. The leaves of {a tree} tree lay all over the garden, and {neighbor} was
too tired to rake them. {hero} saw this and ran to get {friend}. "We will help," said {hero} {kindly}. They
put the leaves into {number} bags. Under the last leaves, they found {a look} {treasure}. "{cheer}!" cried
{neighbor}. "I lost that {treasure} long ago, and I have felt {gloom} ever since." {He neighbor} gave them
some {treats} and {a color} {toy}. Then {he neighbor} told them stories about {topic}. After that, {hero} and
{friend} often came to play {game} with {neighbor}. {closing}

# the train that stopped
The train to the {place} was full, and {hero} sat next to {elder}. {hero} held {his} {color} {toy} and looked
at the fields of {flowers}. {sound}! The train stopped. "There is {a animal} on the tracks," said the
conductor {kindly}. Everyone felt {gloom}, but {hero} had an idea. {He} had {a box} full of {treats}. {hero}
put some {treats} on the grass beside the tracks. The {animal} came over to eat the {treats}, and now the
train could go on. "{cheer}!" shouted the people. The conductor gave {hero} {a wear} and let {him} ring the
bell {number} times. {elder} {smiled}. {closing}

# the dark house
During a storm, all the lights in the house went out. {hero} bumped into {a look} chair. {crash}! {He} felt
{gloom}. "Stay where you are," said {elder} {kindly}. {elder} found {number} candles {hide} and lit them. Now
there were shadows on the {color} wall. {hero} moved {his} hands and made the shadow of {a animal}. {friend}
made the shadow of {a creature}. "I want some {treats}," said the {animal}. "I ate all the {treats}," said the
{creature}. {hero} and {friend} laughed and made up a play about {topic}. "{cheer}!" said {elder} when it was
over. {hero} felt {feeling}. {closing}

# the messy room
{hero}'s room was so messy that nobody could walk in it. There was {a color} {wear} on the lamp and {a toy} in
the bed. {hero} could not find {his} book about {topic}, and {he} felt {gloom}. "Let us make it a game," said
{elder} {kindly}. "You are {a job}, and I am {a animal}." So the {job} put things into {a box}, and the
{animal} swept the floor. There, under the {wear}, was the book about {topic}! "{cheer}!" cried {hero}. Now
the room was so tidy that {friend} could come over to play {game}. {hero} felt {feeling}. {closing}
"""
