"""Plots 1 to 32: children at home, at school and about the town, in the notation of `stories.py`."""

PLOTS = """
# the lost toy
One {weather} {time}, {hero} could not find {his} {color} {toy}. "Where can it be?" asked {hero}. {He} looked
{hide}, but it was not there. {He} looked {spot}, but it was not there. {He} felt {gloom}. "Do not worry,"
said {friend} {kindly}. "I will help you look." Together they {walked} to the {place}. There, next to {a box},
lay the lost {toy}! "{cheer}!" cried {hero}. The two friends went home and ate some {treats}. {closing}

# the first day at school
{once}, there lived {a trait} {boy} named {hero} who was new at school. On the first day, {he} felt {gloom}
and sat alone with some {treats}. Then a {boy friend} in {a color} {wear} came over. "My name is {friend},"
said the {boy friend} {kindly}. "Do you like {hobby}?" "Yes, I do!" said {hero}. So they ate together and
played {game} until the bell rang. The next day, {hero} brought {a look} {toy} to show to {his} new friend.
"{cheer}!" said {friend}. School was not scary anymore. {closing}

# the broken vase
One {fine} {time}, {hero} ran through the house with {a toy} and bumped into something. {crash}! It was
{elder}'s {look} {color} vase, and now it was in {number} pieces. {hero} felt {gloom} and wanted to hide the
pieces {hide}. But {he} took a deep breath and told the truth. "I broke your vase, and I am sorry," said
{hero}. "Thank you for telling me," said {elder} {kindly}. "We can fix it together." They glued the pieces and
filled the vase with {flowers}. Then they ate some {treats}, and {hero} felt {feeling}. {closing}

# the wind in the tree
On a windy {time}, {hero} wore {a color} {wear} to the {place}. Whoosh! The wind took it away and hung it high
up in {a tree} tree. {hero} felt {gloom} because {he} could not reach it. {A bird} sat on a branch. "Can you
help me?" asked {hero}. "I will help if you bring me some {fruits}," said the bird {kindly}. So {he} {walked}
home and came back with {number} of them in {a box}. The bird ate them all, and then it pushed the {wear} off
the branch. "{cheer}!" cried {hero}, and danced all the way home. {closing}

# the seeds
One {fine} {time}, {elder} gave {hero} {number} tiny seeds. "What will they be?" asked {hero}. "Wait and see,"
said {elder} {kindly}. The {boy} planted the seeds near the {place}, beside {a tree} tree, and watered them
with {a color} watering can. For a long time nothing happened, and {hero} felt {gloom}. Then, one {weather}
morning, little green leaves came out of the ground. Soon they were {flowers}! "{cheer}!" cried the {boy}.
{He} put the flowers in {a box} and brought them to {friend}, who had a bad cold. "They smell so sweet," said
{friend}. {closing}

# the bicycle
One {fine} {time}, {hero} wanted to learn to ride {a color} bicycle. {elder} took {him} to the path near the
{place}. {hero} put on {a look} helmet and began to pedal. {crash}! {He} fell down next to some {flowers} and
felt {gloom}. "Try once more," said {elder} {kindly}. "I will hold on." {hero} tried {number} more times. Then
nobody was holding on, and the bicycle did not fall! It rolled right past {friend}, who was eating some
{treats}. "{cheer}! You can ride!" shouted {friend}. {hero} rang the bell and felt {feeling}. {closing}

# the noise at bedtime
At bedtime, {hero} lay in {a color} bed with {a toy} and heard a strange noise. {sound}! "There is
{a creature} {hide}," whispered {hero}. {elder} came with {a look} lamp. "Let us see," said {elder} {kindly}.
They looked and looked. It was only {a critter} eating some {treats}! "{cheer}!" laughed {hero}. {He} made the
little animal a soft bed out of an old {wear} and named it {pet}. "Good night, {pet}," {he} said. In the
morning, they both felt {feeling}. {closing}

# the birthday cake
It was {elder}'s birthday, and {hero} wanted to bake {a flavor} cake. {friend} came to help. They mixed eggs,
flour, and {fruits} in {a color} bowl. But {hero} let go of the bowl. {crash}! Now there was cake {hide}.
{hero} felt {gloom}. "We can clean up and try again," said {friend} {kindly}. So they washed the floor and
baked a new cake. They put {number} candles on top and some {flowers} beside it. Then {elder} came home from
the {place}. "{cheer}! What a lovely cake!" They ate it all and played {game}. {closing}

# the castle of blankets
It rained and rained, so {hero} and {friend} could not go to the {place}. They felt {gloom}. "Let us build a
castle," said {hero} {kindly}. They hung {a color} blanket over {number} chairs. Inside, they put {a look}
lamp, some {treats}, and {a toy}. "Now we need {a creature} to guard it," said {friend}. Just then {a critter}
named {pet} crept in. "{cheer}! Here it is," laughed {hero}. They told {pet} stories about {topic} until the
rain stopped. They all felt {feeling}. {closing}

# the shy musician
One {fine} {time}, {hero} was going to play the {instrument} in a show near the {place}. {He} wore {a color}
{wear}. But when {he} saw {number} people waiting, {he} felt {gloom}. "I cannot do it," whispered {hero}.
"Just look at me and think of {topic}," said {friend} {kindly}. So {hero} looked at {friend} and began to
play. It was a song about {a animal} who loved {hobby}. When it was over, everyone clapped. "{cheer}!" they
shouted. {hero} felt {feeling}. {closing}

# the fruit stand
{hero} wanted to buy {a color} {toy}, but {he} had no money. {He} felt {gloom}. "You could sell {fruits} from
our garden," said {elder} {kindly}. So {hero} put a table near the {place} and filled {a box} with fruit.
First came {neighbor} and bought {number} of them. Then came {a job}, and then came {friend}. "{cheer}! We
sold it all!" cried {hero}. {He} {walked} to the store and bought the {toy}. {friend} was the first to play
with it, and they both felt {feeling}. {closing}

# the loose tooth
{hero} had a loose tooth that would not come out. {He} ate some {treats}, but the tooth stayed in. {He} played
{game}, but the tooth stayed in. {hero} felt {gloom}. "Just wait a little," said {elder} {kindly}. The next
day, near the {place}, {friend} told a joke about {a animal} in {a color} {wear}. {hero} laughed so hard that
the tooth popped out! "{cheer}!" cried {hero}. {He} put the tooth under {his} pillow. In the morning, there
lay {number} coins and {a treasure}. "Look what I got," {he} said to {friend}. {closing}

# the library book
One {weather} {time}, {hero} went to the library to find a book about {topic}. But the book was gone. {hero}
felt {gloom}. "Try this one," said the librarian {kindly}. "It is about {a animal} who loves {hobby}." {hero}
sat down in {a color} chair and read {number} pages. Then a {boy friend} in {a wear} sat down too. "I have the
book you were looking for," said the {boy friend}. "My name is {friend}. Shall we trade?" "{cheer}! Yes,
please!" said {hero}. They read until the library closed, and they both felt {feeling}. {closing}

# the snowman
Snow had fallen all around the {place}. {hero} and {friend} went out to build a snowman. They gave him
{number} buttons, {a color} {wear}, and {a toy} to hold. "He looks lonely," said {hero}. "Then let us make him
a friend," said {friend} {kindly}. So they built {a animal} out of snow. But then the head fell off. {crash}!
They felt {gloom}, but {hero} fixed it with more snow. {A bird} came and sat on top. "{cheer}!" laughed
{friend}. They went inside and ate some {treats}. {closing}

# the sandcastle
At the beach, one {fine} {time}, {hero} built a sandcastle with {number} towers. {He} put {a color} flag on
top and {a treasure} by the door. Then a big wave came. Splash! The sandcastle was gone, and {hero} felt
{gloom}. A {boy friend} came over with {a look} bucket. "I am {friend}," said the {boy friend} {kindly}. "Let
us build a new one far from the water." They dug and dug, and they made a sand {creature} to guard it.
"{cheer}!" cried {hero}. Another wave came, but this time the sandcastle stood. {elder} brought some {treats},
and they all felt {feeling}. {closing}

# moving away
{hero} felt {gloom} because {his} best friend {friend} was moving to a house near {a place}. "Who will play
{game} with me?" asked {hero}. "Give {him friend} something to remember you by," said {elder} {kindly}. So
{hero} put {a treasure}, {number} stickers, and a picture of {a animal} into {a color} {box}. {friend} loved
it and waved goodbye. Many weeks later, a letter came. "{cheer}! My friend is coming to visit!" cried {hero}.
{He} got some {treats} ready and waited by the gate. Soon they were together again, and they felt {feeling}.
{closing}

# at the doctor
{hero} did not feel well. {He} had {number} red spots on {his} tummy. "We must see the doctor," said {elder}.
{hero} felt {gloom} and held {a color} {toy} tight. In the waiting room sat a {boy friend} in {a wear}. "I am
{friend}," said the {boy friend} {kindly}. "Do not be afraid. The doctor has {a box} full of {treats}." The
doctor looked at the spots and told a joke about {a animal}. "{cheer}!" laughed {hero}. At home, {elder} read
{him} a story about {topic}. In the morning the spots were gone. {closing}

# too much salt
{elder} was cooking a big pot of soup, and {hero} wanted to help. {hero} stirred the soup with {a color} spoon
and reached for the salt. {crash}! All of the salt fell in. {hero} felt {gloom}. "We can save it," said
{elder} {kindly}. They added {number} cups of water. Then {friend} came in with {a look} {box} full of
{veggies}. They cut them up and put them in the soup. Now there was so much soup that they called {neighbor}
to come and eat. "{cheer}! This is the best soup in town." After supper, they all played {game}, and {hero}
felt {feeling}. {closing}

# the painting contest
There was going to be a painting contest near the {place}, and {hero} painted {a animal} in {a color} {wear}.
Then {a critter} named {pet} ran right across the wet paint. Now there were {number} tracks on the picture.
{hero} felt {gloom}. "Turn the tracks into {flowers}," said {friend} {kindly}. So {hero} painted petals around
every track. At the contest, {neighbor} looked at the picture for a long time. "{cheer}! This one wins!" The
prize was {a toy}. {hero} shared it with {friend}, and {pet} got some {treats}. {closing}

# lost at the market
In the busy market, {hero} let go of {elder}'s hand to look at {a color} {toy}. When {he} turned around,
{elder} was gone. {hero} felt {gloom}. {He} stood still between the {fruits} and the {flowers}. "Are you
lost?" asked {a job} {kindly}. "Yes," said {hero}. "Can you see {a look} {wear}?" Then {he} saw it, {number}
tables away. "{cheer}!" shouted {hero}. {elder} ran over and hugged {him}. They bought some {treats} and went
home, past the {place}. {closing}

# the new baby
{hero} had a new baby {brother friend} named {friend}. All day long, {he friend} cried and cried. {elder} sang
about {topic}, but the baby cried. {neighbor} brought {a color} {toy}, but the baby cried. {hero} felt
{gloom}. Then {he} put on {a wear}, made a face like {a animal}, and said, "{sound}!" The baby stopped crying.
{hero} did it {number} more times, and the baby laughed. "{cheer}! How did you do that?" asked {elder}. "I am
a big {brother} now," said {hero} {kindly}. Then the baby fell asleep, and everyone had some {treats}.
{closing}

# the open gate
One {fine} {time}, {hero} visited {neighbor}'s farm near the {place}. There was {a critter} named {pet} who
liked to run away. {hero} forgot to close the gate, and soon the little animal was gone. {He} looked {spot},
but it was not there. {hero} felt {gloom}. "Do not worry," said {neighbor} {kindly}. "Just put some {fruits}
by the gate." So {he} filled {a color} {box} and counted to {number}. Then {pet} came out and began to eat.
"{cheer}!" cried {hero}, and closed the gate. They all felt {feeling}. {closing}

# the treasure map
{hero} found an old map {hide}. "It shows a treasure," said {hero}. {friend} came with a shovel. They walked
{number} steps from the {place} and began to dig under {a tree} tree. At first, they found only {a treasure},
and they felt {gloom}. "Let us dig a little deeper," said {friend} {kindly}. Then the shovel hit {a color}
{box}! Inside lay {a toy} and a letter. "A good friend is the best treasure," said the letter. {elder} jumped
out from behind the tree with some {treats}. "{cheer}! It was you!" cried {hero}. They all felt {feeling}.
{closing}

# the letter in the bottle
While walking by the sea, {hero} found {a color} bottle. There was a letter inside. "My name is {friend},"
said the letter. "I live on an island with {a animal}. I love {hobby}, but I have no one to play {game} with."
{hero} felt {gloom}. "Let us write back," said {elder} {kindly}. So {hero} wrote about {topic}, put the letter
and {a treasure} into the bottle, and threw it into the sea. After {number} weeks, {a look} boat came.
"{cheer}! You must be {friend}!" cried {hero}. They shared some {treats} and played all day long. {closing}

# the toy that was not shared
{friend} had a new {color} {toy}, and {hero} wanted one too. {He} only had {a treasure} and felt {gloom}. They
met near the {place}. "May I play with it?" asked {hero}. "No, it is mine," said {friend}. {hero} sat down
under {a tree} tree. "Maybe you could share something first," said {elder} {kindly}. So {hero} gave half of
{his} {treats} away. "I am sorry," said {friend}. "You can play too." "{cheer}!" cried {hero}. They made
believe that it belonged to {a creature}. They felt {feeling}. {closing}

# learning to swim
{hero} was afraid of deep water. At the pool, {he} sat on {a color} towel and watched {friend} swim like
{a sea}. {hero} felt {gloom}. "Hold my hands and kick," said {friend} {kindly}. {hero} put on {a look} cap and
counted to {number}. Then {he} stepped in and kicked so hard that {neighbor}'s {wear} got wet. "Sorry," said
{hero}. {He} kicked again and again, and soon {he} could swim! "{cheer}!" shouted {friend}. {elder} gave {him}
a medal with {a animal} on it. They ate some {treats} by the pool and felt {feeling}. {closing}

# the tangled wool
Winter was coming, and {hero} wanted to knit {a wear} for {elder}. {He} bought {number} balls of {color} wool
near the {place}. But {a critter} named {pet} played with the wool and tangled it all up. {hero} felt {gloom}.
"I will hold the wool for you," said {friend} {kindly}. So {hero} knitted, and they talked about {topic}. At
last, it was done. "{cheer}! It is as warm as a hug," said {elder}. There was even enough wool for a tiny
blanket for {pet}. They ate some {treats} and felt {feeling}. {closing}

# the big race
{hero} and {friend} were in the big race to the {place}. The prize was {a toy}. {neighbor} counted to {number}
and waved {a color} flag. {hero} ran very fast. Then {he} saw {a critter} that was stuck in {a box}. {He}
stopped and helped it out. But now {friend} had won the race, and {hero} felt {gloom}. "You stopped to help,"
said {friend} {kindly}. "The prize is for you." "Let us share it," said {hero}. "{cheer}!" shouted the people,
and gave them some {treats}. They named the little animal {pet}, and they all felt {feeling}. {closing}

# the leaves
Old {neighbor} lived near the {place}. The leaves of {a tree} tree lay all over the garden, and the old
{man neighbor} was too tired to rake them. {hero} saw this and ran to get {friend}. "We will help," said
{hero} {kindly}. They put the leaves into {number} bags. At the bottom, they found {a look} {treasure}.
"{cheer}! I lost it long ago!" cried {neighbor}. {He neighbor} gave them some {treats} and {a color} {toy},
and told them stories about {topic}. After that, {hero} and {friend} often came to play {game}. {closing}

# the train that stopped
The train to the {place} was full, and {hero} sat next to {elder}. {hero} held {a color} {toy} and looked at
the fields of {flowers}. {sound}! The train stopped. "There is {a animal} on the tracks," said the conductor
{kindly}. Everyone felt {gloom}, but {hero} had an idea. {He} had {a box} full of {treats} and put some of
them on the grass. The animal came over to eat, and now the train could go on. "{cheer}!" shouted the people.
The conductor gave {hero} {a wear} and let {him} ring the bell {number} times. {elder} {smiled}. {closing}

# the dark house
During a storm, all the lights in the house went out. {hero} bumped into {a look} chair. {crash}! {He} felt
{gloom}. "Stay where you are," said {elder} {kindly}. {elder} found {number} candles {hide} and lit them. Now
there were shadows on the {color} wall. {hero} made the shadow of {a animal}. "I want some {treats}," said the
shadow. {friend} made the shadow of {a creature}. "I ate them all," said the other shadow. They laughed and
made up a play about {topic}. "{cheer}! What a lovely play!" said {elder}. {hero} and {friend} felt {feeling}.
{closing}

# the messy room
{hero}'s room was so messy that nobody could walk in it. There was {a color} {wear} on the lamp and {a toy} in
the bed. {hero} could not find {his} book about {topic}, and {he} felt {gloom}. "Let us make it a game," said
{elder} {kindly}. "You are {a job}, and I am {a animal}." So they put {number} things into {a box} and swept
the floor. There, under the bed, was the lost book! "{cheer}!" cried {hero}. Now the room was so tidy that
{friend} could come over to play {game}. They felt {feeling}. {closing}
"""
