"""Plots 33 to 64: animals, machines and magic, in the notation of `stories.py`."""

PLOTS = """
# the stray
On the way home from school, {hero} saw {a critter} sitting alone near the {place}. It followed {him} all the
way home. "May I keep it?" asked {hero}. "First we must find out who lost it," said {elder} {kindly}. So
{hero} drew {number} posters with {a color} pencil. {He} gave the {critter} some {treats} and made it a bed
out of an old {wear}. The next day, a {boy friend} named {friend} came to the door. "That is my {critter}!"
said {friend}. "Its name is {pet}." {hero} felt {gloom}, but {he} gave {pet} back. "You can come and play with
{pet} any time," said {friend}. "{cheer}!" said {hero}. From then on, {hero}, {friend}, and {pet} played
{game} together. {closing}

# the hurt wing
Under {a tree} tree, {hero} found {a bird} with a hurt wing. It felt {gloom} because it could not fly. "I will
take care of you," said {hero} {kindly}. {He} carried the {bird} home in {a color} {box} and named it {pet}.
{He} gave {pet} some {fruits}, and {elder} put a bandage on the wing. After {number} days, {pet} hopped onto
{a toy}. {hero} opened the window. "Fly, {pet}, fly!" {he} said. {pet} flew over the {place} and was gone. But
in the spring, {hero} heard a song. "{cheer}!" cried {hero}. "{pet} is back!" The {bird} had brought {him}
{a treasure}. {hero} felt {feeling}. {closing}

# the animal that wanted to fly
{once}, there lived {a animal} named {pet} who wanted to fly. Every day, {he pet} watched {a bird} in the sky
and felt {gloom}. One day, {pet} made wings out of {color} paper and jumped off a wall near the {place}.
{crash}! {He pet} fell into some {flowers}. "You were not made to fly," said the {bird} {kindly}. "But I can
help you." The {bird} called {number} friends, and they brought a big basket. {pet} climbed in, and the birds
lifted the basket up into the sky. Far below, the {place} looked as small as {a toy}. "{cheer}!" shouted
{pet}. "I am flying!" Then {pet} shared some {treats} with the birds and felt {feeling}. {closing}

# winter food
{once}, there lived {a animal} named {pet} who loved {hobby} all summer long. "Winter is coming," said
{friend}, a wise old {bird}. "You should save some food." But {pet} only laughed. Then the snow came, and
{pet} had nothing to eat. {He pet} felt {gloom}. {He pet} went to the home of {friend} near the {place}. "Come
in," said {friend} {kindly}. "I have {number} sacks of {treats}." {pet} ate and ate. To say thank you,
{he pet} played the {instrument} for {friend}, and {friend} {smiled}. "Next winter, I will feed you," said
{pet}. "{cheer}!" said {friend}. They both felt {feeling}. {closing}

# the narrow bridge
Two animals met on a narrow bridge near the {place}. One was {a animal} named {pet}, and the other was
{a critter} named {friend}. "Let me go first," said {pet}. "I want to buy {a color} {wear}." "No, let me go
first," said {friend}. "I have some {treats} for {elder}." They pushed and pushed. {crash}! They both fell
into the water and felt {gloom}. "Why do you not take turns?" asked {a bird} {kindly} from {a tree} tree. So
first {friend} went over the bridge, and then {pet} went over the bridge. "{cheer}!" said {pet}. "That was
easy." They sat down and shared the {treats}. They felt {feeling}. {closing}

# the little engine
{once}, there lived a little {color} {vehicle} named {pet}. The big cars laughed because {pet} was so slow,
and {pet} felt {gloom}. One {weather} {time}, {hero} had a birthday party near the {place}, at the top of a
steep hill. But the big cars could not bring the {flavor} cake up the hill! "I will try," said {pet} {kindly}.
{pet} took the {flavor} cake, {number} candles, and {a toy}. {sound}! {sound}! Up and up went the {vehicle}.
"{cheer}!" cried {hero} at the top. "You did it!" Everyone ate some cake, and {hero} put a ribbon on {pet}.
Nobody ever laughed at the little {vehicle} again. {closing}

# the hiccups
{once}, there lived {a creature} named {pet} who had the hiccups. "{sound}!" went {pet}, and {a color} bubble
came out. Nobody near the {place} could sleep, and {pet} felt {gloom}. "I will help you," said {hero}
{kindly}. {hero} gave {pet} some {treats}. "{sound}!" went {pet}. {hero} told {pet} to count to {number}.
"{sound}!" went {pet}. Then {hero} put on a funny {wear}, hid behind {a tree} tree, and jumped out. "Boo!"
shouted {hero}. {pet} was so surprised that the hiccups were gone. "{cheer}!" said {pet}, and gave {hero}
{a treasure}. {hero} and {pet} felt {feeling}. {closing}

# the upside-down wand
{once}, there lived {a trait} wizard named {friend}. One day, {friend} waved {a look} wand to make some
{treats}. {sound}! There were no {treats}, but {a animal} stood on the table. {friend} tried again. {sound}!
Now {number} {fruits} were dancing around the {animal}. {friend} felt {gloom}. A {boy} named {hero} heard the
noise and came in from the {place}. "Your wand is upside down," said {hero} {kindly}. {friend} turned the wand
around. {sound}! The {animal} was gone, the {fruits} stopped dancing, and there were the {treats}. "{cheer}!"
cried {friend}. They ate the {treats} together and felt {feeling}. {closing}

# the queen who could not laugh
{once}, there lived {a trait} {king} named {hero} who could not laugh. {A job} told a joke about {a animal},
but {hero} did not laugh. The cook brought some {treats}, but {hero} did not laugh. Then a {boy friend} named
{friend} came with {a critter} in {a wear}. "Just watch," said {friend} {kindly}. The {critter} danced to the
{instrument} and fell into {a box}. {crash}! {hero} began to laugh and could not stop. "{cheer}!" cried the
{king}. "How can I thank you?" "Come and play {game} with us," said {friend}. So the {king} and {friend}
played {game} all day long, and {hero} felt {feeling}. {closing}

# the fallen star
One night, a little star fell down near the {place}. {hero} found it under {a tree} tree. The star was no
bigger than {a treasure}. "I want to go home," said the star. "I will help you," said {hero} {kindly}. {He}
put the star into {a box} and {walked} to {friend}. They tied the star to {number} {color} balloons, but
{a bird} popped them all. They felt {gloom}. Then {a creature} named {pet} came by. "I can throw very far,"
said {pet}. The {creature} threw the star up, up, up, until it was back in the sky. "{cheer}!" shouted {hero}.
The star winked at {hero}, {friend}, and {pet}. They felt {feeling}. {closing}

# small but brave
Nobody believed that {pet} the {bug} could be brave. The big animals laughed, and {pet} felt {gloom}. One
{weather} {time}, {a animal} named {friend} fell into a deep hole near the {place}. "Help!" cried {friend}.
The hole was too narrow for the big animals. "I am small enough," said {pet} {kindly}. {pet} climbed down and
tied {a color} rope around {friend}. Then all the animals counted to {number} and pulled. {sound}! Out came
{friend}. "{cheer}!" said {friend}. "You saved me." They made {pet} a crown of {flowers} and gave {him pet}
some {treats}. {pet} felt {feeling}. {closing}

# room under the mushroom
It began to rain, and {a bug} named {pet} hid under a mushroom near the {place}. Soon {a critter} came. "May I
come in?" asked the {critter}. "Yes, there is room," said {pet} {kindly}. Then came {a bird} with {a color}
leaf on its head. "Yes, there is room," said {pet}. Then came {a animal} named {friend}. "You are too big,"
said the {critter}, and {friend} felt {gloom}. But {pet} said, "Yes, there is room." They all moved closer,
and they all fit. "{cheer}!" said {friend}. They ate some {treats} and told {number} stories about {topic}.
When the rain stopped, they all felt {feeling}. {closing}

# the way to the reef
Deep down in the sea, {a sea} named {pet} could not find {his pet} way home. {He pet} felt {gloom}. "Where is
the {color} reef?" asked {pet}. "I do not know," said an old crab. Then a diver named {hero} came by. "I will
help you," said {hero} {kindly}. {He} took a map of the sea out of {a box}. Together, they swam past {number}
rocks, {a look} ship, and some sea {flowers}. At last, they saw the {color} reef. "{cheer}!" said {pet}. "I am
home!" {pet} gave {hero} {a treasure}. That evening, {hero} showed the {treasure} to {elder} and told
{him elder} about {pet}. {elder} {smiled} and gave {hero} some {treats}. {closing}

# the robot with one word
{hero} built a robot out of {a box} and {number} buttons. {He} painted it {color} and named it {pet}. But the
robot knew only one word. "Do you want to play {game}?" asked {hero}. "{sound}," said {pet}. "Do you want some
{treats}?" asked {hero}. "{sound}," said {pet}. {hero} felt {gloom}. "Maybe {pet} needs a heart," said
{friend} {kindly}. So they cut a heart out of paper and put it into the robot. "Hello," said {pet}. "I like
{hobby}." "{cheer}!" cried {hero}. "I like {hobby} too." Then {hero}, {friend}, and {pet} went to the {place}
and played {game}. They felt {feeling}. {closing}

# the lonely scarecrow
In a field near the {place} stood a scarecrow named {pet}. {He pet} wore {a color} {wear} with {number}
buttons. All the birds were afraid of {him pet}, and {pet} felt {gloom}. One {weather} {time}, {a bird} was
caught in a net. "Please help me," said the {bird}. {pet} reached out {his pet} straw arm and opened the net.
"You are not scary at all," said the {bird} {kindly}. Soon all the birds came to see {pet}. They brought
{him pet} some {fruits} and {a treasure}. They sang about {topic}, and {hero} from the farm played the
{instrument}. "{cheer}!" said {pet}. The scarecrow was never lonely again. {closing}

# the thunder
{hero} had {a critter} named {pet} who was afraid of thunder. One {time}, dark clouds came over the {place}.
Boom! {pet} ran away to hide. {hero} called and called, and {he} felt {gloom}. Then {he} looked {hide}. There
was {pet}! "Do not be afraid," said {hero} {kindly}. "It is only {a creature} playing the {instrument} in the
clouds." {hero} put a warm blanket around {pet} and sang about {topic}. Boom! They counted to {number}. Boom!
They counted to {number} again, and then the thunder was over. {friend} came in with some {treats}. "{cheer}!"
said {friend}. "{pet} was so brave." {hero} and {pet} felt {feeling}. {closing}

# the great sneeze
{once}, there lived {a animal} named {pet} who could not stop sneezing. "{sound}!" sneezed {pet}, and {number}
leaves fell from {a tree} tree. "Please stop," said {a bird}. "I cannot," said {pet}, and {he pet} felt
{gloom}. Then a doctor named {friend} came from the {place} with {a box}. "Let me see," said {friend}
{kindly}. "There is {a color} feather in your nose!" {friend} pulled out the {color} feather, and the sneezing
stopped. "{cheer}!" said {pet}. There was a party with some {treats} for everyone. But then the {bird} put its
beak into some pepper. "{sound}!" sneezed the {bird}, and they all laughed. {closing}

# the one who could not sleep
{A animal} named {pet} could not fall asleep. {He pet} lay down under {a color} blanket and drank some
{flavor} milk. {He pet} counted to {number}, but {he pet} was still awake. {pet} felt {gloom}. So {he pet}
went to {friend}, {a bird} who lived near the {place}. "I cannot sleep either," said {friend} {kindly}. "Let
us tell stories." {pet} told a story about {topic}. {friend} told a story about {a creature} who loved
{treats}. The story about the {creature} was long, and soon {friend} began to snore. {pet} hugged {a toy} and
closed {his pet} eyes. In the morning, {pet} and {friend} felt {feeling}. {closing}

# the net
A big {animal} named {friend} was sleeping near the {place}. {A critter} named {pet} bumped into {him friend}
and woke {him friend} up. "Please let me go," said {pet}. "I will help you one day." {friend} laughed, but
{he friend} let {pet} go. After {number} days, {friend} was caught in {a color} net and felt {gloom}. {pet}
heard {him friend} and {walked} over. "Hold still," said {pet} {kindly}. {pet} opened the knots one by one,
and the net fell off. "{cheer}!" said {friend}. "Even a small {critter} can be a big help." They ate some
{treats} under {a tree} tree and played {game}. {friend} and {pet} felt {feeling}. {closing}

# all mine
{A animal} named {pet} found {a box} full of {fruits}. "They are all mine," said {pet}, and hid the {box}
{spot}. Then {a critter} named {friend} came by. {friend} was hungry and felt {gloom}. "May I have one?" asked
{friend}. "No," said {pet}, and ate {number} {fruits} at once. Soon {pet} had a tummy ache. {friend} came back
with {a color} cup. "Drink this tea," said {friend} {kindly}. The tea helped, and {pet} felt better. "I am
sorry," said {pet}, and gave half of the {fruits} to {friend}. "{cheer}!" said {friend}. {A bird} came by with
some {treats}, and they all ate together. They felt {feeling}. {closing}

# the moon as a gift
{hero} wanted to give the moon to {elder}. {He} climbed up {a look} ladder near the {place}, but the moon was
too high. {He} threw {a color} rope, but the moon was too far. {He} asked {a bird} to bring it down. "I cannot
fly that high," said the {bird} {kindly}. {hero} felt {gloom}. Then {he} saw the moon in a bucket of water!
"{cheer}!" cried {hero}. {He} and {friend} carried the bucket past {number} houses to {elder}. {elder} looked
at the moon in the bucket and {smiled}. "It is the best gift of all," said {elder}. They ate some {treats} and
told stories about {topic}. {hero} felt {feeling}. {closing}

# one wish
While cleaning the attic, {hero} rubbed {a color} lamp. {sound}! Out came a genie named {pet}. "You have one
wish," said {pet} {kindly}. {hero} thought of {a toy}. {He} thought of {number} plates of {treats}. Then {he}
saw that the genie felt {gloom}. "What is wrong?" asked {hero}. "I miss my home near the {place}," said {pet}.
"I cannot leave the lamp." So {hero} made {his} wish. "I wish that you were free," said {hero}. The lamp
turned into {a bird} and flew away. "{cheer}!" cried {pet}. "Thank you!" The genie went home, but {he pet}
came back every {time} to play {game} with {hero} and {friend}. They felt {feeling}. {closing}

# the talking tree
In the middle of the woods stood {a tree} tree that could talk. It knew {number} stories. One {fine} {time},
{hero} sat down under it with {friend}. "Please tell us a story about {topic}," said {hero}. "I am too sad,"
said the tree. "Soon {a job} will cut me down." {hero} and {friend} felt {gloom}. "We will save you," said
{friend} {kindly}. They hung {flowers} on every branch, and {neighbor} played the {instrument}. Then the {job}
came. "What a lovely tree," said the {job}. "I will not cut it down." "{cheer}!" cried {hero}. They all ate
some {treats}, and the tree told them a story about {topic}. They felt {feeling}. {closing}

# the gentle giant
A gentle giant named {pet} lived near the {place}. {He pet} was so big that {his pet} {wear} was made out of
{number} tents. One day, {pet} stepped on {neighbor}'s {flowers} by mistake. {crash}! {neighbor} was angry,
and {pet} felt {gloom}. Only {hero} was not afraid. "You did not mean to do it," said {hero} {kindly}. {He}
gave {pet} {a color} bag of seeds. {pet} planted new {flowers} all over the hill. Then {he pet} lifted
{a vehicle} out of the mud. "{cheer}!" said {neighbor}. "You are a good giant." {neighbor} gave {pet} so many
{treats} that they filled the {vehicle}. {pet} and {hero} felt {feeling}. {closing}

# the toys at night
Late at night, when {hero} was asleep, {his} toys woke up. "Where is {pet}?" asked the {toy}. {pet} was
{a color} cloth {animal}, and {he pet} was missing. The toys felt {gloom}. "Let us look {spot}," said a tin
soldier named {friend}. They climbed out of the window and met {a critter}. "Sit on my back," said the
{critter} {kindly}. The {critter} took them past {number} trees. There was {pet}, {spot}! "You came for me!"
said {pet}. "{cheer}!" said {friend}. They put {a wear} on {pet} because {he pet} was cold, and then they all
went home. In the morning, {hero} found {pet} in the {wear} and felt {feeling}. {closing}

# the cloud that would not rain
A little cloud named {pet} did not want to rain. Down in the garden, the {flowers} were thirsty. "Please rain
on my {flowers}," said {hero}. "If I rain, I will be gone," said {pet}. {He pet} felt {gloom}. "You will come
back," said {a bird} {kindly}. "The rain runs past the {place} to the sea, and the sun lifts it up again." So
{pet} counted to {number} and let go. {hero} put on {a color} {wear} and danced in the rain with {friend} and
{a critter}. "{cheer}!" they cried. Soon {pet} was back in the sky. "I saw {a sea} in the sea," said {pet}.
The cloud felt {feeling}. {closing}

# the lost song
{A bird} named {pet} had lost {his pet} song. {He pet} opened {his pet} beak, but it only went "{sound}!"
{pet} felt {gloom}. {He pet} asked {a animal} named {friend} for help. "A song is in your heart," said
{friend} {kindly}. "Tell me what you love." "I love {weather} days," said {pet}. "I love {flowers} and
{treats}." The words began to sound like a song, and soon {pet} was singing. {hero} heard it and danced near
the {place}. Then {number} other birds came to listen. "{cheer}!" said {friend}. "You found your song." {pet}
sang about {weather} days, {flowers}, and {treats}, and felt {feeling}. {closing}

# the mouse in the bakery
Every night, a mouse named {pet} came to {neighbor}'s bakery and took {number} {treats}. {neighbor} felt
{gloom}. "I will catch the thief," said {neighbor}, and hid behind {a color} {box}. {crash}! {pet} fell into
some {flavor} cream. "Please do not be angry," said {pet}. "My children are hungry." "Then you may work for
me," said {neighbor} {kindly}. From then on, {pet} wore a tiny {wear} and helped in the bakery. {He pet} was
very good at making {treats}. "{cheer}!" said {a job} who lived near the {place}. "These are the best {treats}
in the world." {pet} took some home to {his pet} children. {neighbor} and {pet} felt {feeling}. {closing}

# the best hiding place
The animals of the forest were playing hide-and-seek. {friend} the {animal} closed {his friend} eyes and
counted. {pet} the {critter} hid in {a box} near the {place}. {friend} found {a bird} in {a tree} tree.
{friend} found {a bug} under a leaf. But nobody could find {pet}. They felt {gloom}. "Listen," said the {bird}
{kindly}. They all listened. {sound}! {sound}! The noise came from the {box}. It was {pet}, and {he pet} was
snoring! "{cheer}!" cried {friend}. "You won the game!" {pet} woke up and got {a toy} as a prize. They all had
some {treats} and felt {feeling}. {closing}

# who ate them all?
Someone had eaten all the {treats} that belonged to {pet}. {pet} was {a animal} who lived near the {place},
and {he pet} felt {gloom}. "Did you eat my {treats}?" asked {pet}. "No," said {a bird}. "No," said
{a critter}. Then {pet} saw some crumbs. The crumbs went past {number} rocks and {a tree} tree, and right back
to the {color} bed where {pet} slept! There stood the empty {box}. "I ate the {treats} in my sleep!" cried
{pet}. "Do not be sad," said {friend} {kindly}. "I have more {treats} at home." "{cheer}!" said {pet}.
{He pet} said sorry to the {bird} and the {critter}, and they all ate together. They felt {feeling}. {closing}

# the leaking boat
{pet} the {animal} wanted to sail across the lake to the {place}. {He pet} made a boat out of {a box}, with
{a color} {wear} for a sail. {He pet} took some {treats} along. But in the middle of the lake, the boat began
to leak. {pet} felt {gloom}. "Help!" cried {pet}. "Hold on," said {friend} {kindly}. {friend} was {a bird} who
was flying by. {friend} called {number} frogs, and the frogs pushed the boat to the shore. "{cheer}!" said
{pet}. {pet} and {friend} fixed the boat with mud and sailed on together. They ate the {treats} and sang about
{topic} all the way to the {place}. They felt {feeling}. {closing}

# the forest band
It was almost time for the forest party, but there was no music. {pet} the {animal} could play the
{instrument}, but {he pet} was afraid to play alone and felt {gloom}. "I can drum on {a box}," said {friend}
the {critter}. "I can sing," said {a bird}. They met near the {place} and began to play. {sound}! {sound}! It
was only noise. "Let us listen to each other," said {friend} {kindly}. They counted to {number}, and this time
it was music. At the party, everyone clapped. "{cheer}!" they shouted. "One more song!" So {pet}, {friend},
and the {bird} played a song about {topic}, and there were {treats} for all. {pet} felt {feeling}. {closing}
"""
